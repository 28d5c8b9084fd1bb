"""The control plane: agents that offer hosts, masters of jobs, and what commands ask of them.

``agent`` runs what a ``master``, which is pure and whose decisions ``job_controller`` writes down,
orders: a ``job_runner`` for each job. ``scheduler`` says which ranks go where, ``store`` and
``file_service`` keep and hand out files, ``client`` is the commands' side.
"""
