// Command kube is every Kubernetes program that the tests need, in one file: one build and one copy of
// the shared code on disk. The name it is called by, or else its first argument, picks the program.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"          // --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // request metrics on /metrics
	_ "k8s.io/component-base/metrics/prometheus/version"  // build information on /metrics
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubeapiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	kubecontrollermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	kubeproxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	kubescheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

// Functions, not commands: making a command registers flags, and those of different programs collide.
var programs = map[string]func() *cobra.Command{
	"kube-apiserver":          kubeapiserver.NewAPIServerCommand,
	"kube-controller-manager": kubecontrollermanager.NewControllerManagerCommand,
	"kube-proxy":              kubeproxy.NewProxyCommand,
	"kube-scheduler":          func() *cobra.Command { return kubescheduler.NewSchedulerCommand() },
	"kubectl":                 kubectl.NewDefaultKubectlCommand,
	"kubelet":                 func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) },
}

func main() {
	newCommand, known := programs[filepath.Base(os.Args[0])]
	if !known && len(os.Args) > 1 {
		newCommand, known = programs[os.Args[1]]
		os.Args = os.Args[1:]
	}
	if !known {
		names := make([]string, 0, len(programs))
		for name := range programs {
			names = append(names, name)
		}
		slices.Sort(names)
		fmt.Fprintf(os.Stderr, "kube: say which program to run, by link name or first argument: %v\n", names)
		os.Exit(2)
	}
	os.Exit(cli.Run(newCommand()))
}
