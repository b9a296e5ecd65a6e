"""Local mode: the pools of a manifest on this machine, where a replica is a supervisor process.

How large a pool is and which replicas leave it is decided by the same code as in a cluster (``decide/sizing.py``); here
is only what a cluster does otherwise: start and stop processes, start crashed ones again, probe readiness.
Nothing in here may import kopf or kubernetes: local mode is a newcomer's first command and has to start fast.
"""
