"""The control plane of a cluster.

An ``agent`` runs a ``job_runner`` for each job that it is ordered to. A ``master``, which is pure,
decides about a job; ``job_controller`` carries the decisions out. ``scheduler`` places ranks,
``store`` and ``file_service`` keep and hand out files. ``client`` is for commands, ``handles`` for
Python; with them are ``job_status`` (what ZooKeeper has of jobs), ``scaling``, ``resume``,
``fetching``.
"""
