"""One worker process, in parts that ``worker.py`` puts together.

All parts have the same life cycle: ``run()`` works beside the jobs until it is cancelled (``start()`` where it needs a
thread), and ``stop()`` ends in order. A part that has neither acts only when it is called. ``host.py`` lists what a part
may use of its worker.
"""
