"""One pod: several worker processes under a supervisor that runs no job code itself.

``supervisor.py`` keeps the processes running and shuts them down, ``places.py`` chooses which one to replace,
``heartbeat.py`` talks to Redis for all of them. ``child.py`` is what each process executes, ``channel.py`` the
connection between the two. ``restarts.py`` (when to start again) and ``probes.py`` (alive, ready, started) are pure.
``status.py``, ``http.py`` and ``exposition.py`` answer probes and scrapes.
"""
