"""The sub-commands of ``broker-filter``, one module each.

Each has ``add_arguments(parser)`` and ``run(args)``, which returns the exit status. All options are
made for every call, so what is heavy is imported inside ``run``; where that would be most of the
module, the options stand in one of their own.
"""
