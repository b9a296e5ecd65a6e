"""One pod: several worker processes under a supervisor that runs no job code itself.

``supervisor.py`` keeps the processes running and brings them to their end, ``heartbeat.py`` speaks to Redis for
all of them, ``child.py`` is what each process executes, ``channel.py`` the line between the two. Decisions are
pure: ``restarts.py`` (when to start again), ``probes.py`` (what the cluster is told). ``http.py`` and
``exposition.py`` answer probes and scrapes.
"""
