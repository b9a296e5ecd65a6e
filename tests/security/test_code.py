"""What the code of the two packages must not contain, and which functions a job can call."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING, Any

from queue_steps import dead_letters, job_fields
from rrq.client import JobRequest, RRQClient
from rrq.registry import JobRegistry
from running import run_burst

if TYPE_CHECKING:
    from rrq.settings import RRQSettings

ROOT = Path(__file__).parents[2]
SOURCES = sorted(path for folder in ("worker", "operator") for path in (ROOT / folder).rglob("*.py"))

#: Whatever turns data into code or objects, or a text into a command line.
BAD_MODULES = {
    "pickle", "_pickle", "dill", "cloudpickle", "marshal", "shelve", "jsonpickle", "code", "codeop",
}  # fmt: skip
BAD_NAMES = {"eval", "exec", "compile", "__import__"}
BAD_CALLS = {
    "os.system", "os.popen", "os.execl", "os.execv", "os.execve", "os.spawnl", "os.spawnv", "subprocess.getoutput",
    "subprocess.getstatusoutput", "yaml.load", "yaml.load_all", "yaml.unsafe_load", "yaml.unsafe_load_all", "yaml.full_load",
    "yaml.full_load_all", "asyncio.create_subprocess_shell", "logging.config.listen", "ssl._create_unverified_context",
    "tempfile.mktemp",
}  # fmt: skip
#: Modules that may be named by a text, where that text is the user's own: a path of settings, our own commands, an
#: exporter or tracer that the application brings.
MAY_IMPORT_BY_NAME = {
    "worker/rrq/settings_loading.py",
    "worker/rrq/commands/lazy_group.py",
    "worker/rrq/__init__.py",  # a table of its own names
    "worker/rrq/hooks.py",  # exporters and hooks that the settings name
}


def _name(node: ast.expr) -> str:
    return ast.unparse(node) if isinstance(node, ast.Name | ast.Attribute) else ""


def find_faults(path: Path, root: Path = ROOT) -> list[str]:
    faults = []
    place = str(path.relative_to(root))
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        where = f"{place}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = (
                [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            )
            faults += [f"{where}: imports {name}" for name in names if name.partition(".")[0] in BAD_MODULES]
        elif isinstance(node, ast.Call):
            name = _name(node.func)
            if name in BAD_NAMES or name in BAD_CALLS:
                faults.append(f"{where}: calls {name}")
            if name.endswith("import_module") and place not in MAY_IMPORT_BY_NAME:
                faults.append(f"{where}: imports a module by name")
            for keyword in node.keywords:
                value = keyword.value.value if isinstance(keyword.value, ast.Constant) else None
                if keyword.arg == "shell" and value is not False:
                    faults.append(f"{where}: starts a shell")
                if (
                    keyword.arg in ("verify", "verify_ssl", "check_hostname", "ssl_check_hostname")
                    and value is False
                ):
                    faults.append(f"{where}: does not verify TLS")
                if keyword.arg == "ssl_cert_reqs":
                    faults.append(f"{where}: chooses how to verify TLS")
        elif isinstance(node, ast.Attribute) and node.attr in ("CERT_NONE", "UnsafeLoader", "FullLoader"):
            faults.append(f"{where}: uses {node.attr}")
    return faults


def test_no_module_turns_data_into_code() -> None:
    assert [fault for path in SOURCES for fault in find_faults(path)] == []


def test_the_search_finds_what_it_looks_for(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text(
        "import pickle, yaml, subprocess, importlib\nfrom marshal import loads\neval('1')\nyaml.load('x')\n"
        "subprocess.run('ls', shell=True)\nimportlib.import_module('os')\nconnect(verify_ssl=False)\n"
    )
    assert len(find_faults(bad, tmp_path)) == 7


FOREIGN_NAMES = [
    "os.system", "os:system", "builtins.eval", "__import__", "eval", "subprocess.run", "rrq.client.RRQClient", "get_handler",
    "__class__", "greet.__globals__", "greet()", "../greet", "greet\0", " greet", "GREET", "lambda: 1", "",
]  # fmt: skip


async def test_only_the_registry_says_what_a_job_may_call(client: RRQClient, settings: RRQSettings) -> None:
    called = []
    registry = JobRegistry()

    async def greet(ctx: dict[str, Any], *args: Any) -> None:
        called.append(args)

    registry.register("greet", greet)
    store = client.job_store
    settings.unknown_function_patience_seconds = 0
    names = dict(enumerate(FOREIGN_NAMES))
    for number, name in names.items():
        job = await client.enqueue("greet", "touch /tmp/pwned", _job_id=str(number))
        assert job is not None
        await store.redis.hset(store.keys.job_key(job.id), "function_name", name)
    await client.enqueue_many([JobRequest("greet", ("innocent",))])
    await run_burst(settings, registry)
    assert called == [("innocent",)]
    assert sorted(await dead_letters(store), key=int) == [str(number) for number in names]
    for number, name in names.items():
        fields = await job_fields(store, str(number))
        assert fields["status"] == "FAILED"
        assert f"No handler registered for function '{name}'" == fields["last_error"]
