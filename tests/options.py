"""Every option there is, and the tests that fail if it is ignored.

``TRAIN`` are the parameters of ``horn.train``, ``JOB`` the fields of ``horn.Job``, ``SUBMIT`` the
parameters of ``horn submit``. An option that has no entry fails tests/api/test_options.py; so does
one whose test is not there. ``pytest -m slow tests/api/test_options.py`` makes a copy of horn for
each, with one line that has the option ignored, and wants each of its tests to fail.
"""

from __future__ import annotations

from dataclasses import dataclass

PROCESSES = "tests/executor/test_options.py::"
LAUNCH = "tests/executor/test_launch.py::"
TRAINING = "tests/api/test_train.py::"
RESUME = "tests/parity/test_resume.py::"
COMMAND = "tests/cli/test_submit.py::"
WORDS = "tests/cli/test_options.py::"
HERE = WORDS + "test_what_is_said_to_submit_reaches_train"
THERE = WORDS + "test_what_is_said_to_submit_reaches_what_a_worker_trains_with"


@dataclass(frozen=True)
class Guard:
    """``ignored`` : a line of Python after which the option is as if nobody had given it; tests :
    those that must fail then.
    """

    ignored: str
    tests: tuple[str, ...]


def guard(ignored: str, *tests: str) -> Guard:
    return Guard(ignored, tests)


def told(name: str, ignored: str, *others: str) -> Guard:
    """A word of submit that reaches train, here and on a cluster."""
    return Guard(ignored, (f"{HERE}[{name}]", f"{THERE}[{name}]", *others))


TRAIN = {
    "groups": guard(
        "groups = 1", PROCESSES + "test_groups_tasks_and_servers_are_processes[2-1-0]"
    ),
    "tasks": guard("tasks = 1", PROCESSES + "test_groups_tasks_and_servers_are_processes[1-2-0]"),
    "servers": guard(
        "servers = None", PROCESSES + "test_groups_tasks_and_servers_are_processes[2-1-2]",
        "tests/executor/test_strategies.py::test_a_server_may_be_a_guest[2-1]",
    ),
    "strategy": guard(
        'strategy = "allreduce"', PROCESSES + "test_a_strategy_and_its_settings_are_what_groups_do"
    ),
    "backend": guard(
        'backend = "kernels"', PROCESSES + "test_backend_is_what_computes_in_tasks",
        "tests/api/test_model.py::test_a_model_says_which_backend_ran[reference-interpreted0]",
    ),
    "seed": guard("seed = None", TRAINING + "test_seed_replaces_the_networks"),
    "threads": guard("threads = None", PROCESSES + "test_threads_bound_those_of_every_task"),
    "progress": guard(
        "progress = None", TRAINING + "test_progress_sees_begin_epochs_and_end_also_when_training_"
        "fails", TRAINING + "test_progress_true_is_a_line_per_epoch_on_stderr",
        LAUNCH + "test_progress_and_counters_of_a_group",
    ),
    "timeout": guard("timeout = None", TRAINING + "test_timeout_stops_the_training"),
    "barrier": guard('barrier = "message"', PROCESSES + "test_barrier_is_what_supersteps_pass"),
    "transport": guard('transport = "shm"', PROCESSES + "test_transport_is_what_carries_blocks"),
    "pins": guard("pins = None", PROCESSES + "test_pins_are_where_weights_are"),
    "profile": guard(
        "profile = False", "tests/api/test_profile.py::test_every_statement_has_its_time_and_line"
    ),
    "trace": guard("trace = None", LAUNCH + "test_progress_and_counters_of_a_group"),
    "superstep_timeout": guard(
        "superstep_timeout = 60.0", LAUNCH + "test_a_stopped_task_is_named_with_what_it_owes"
    ),
    "start_timeout": guard(
        "start_timeout = 60.0",
        "tests/executor/test_starts.py::test_who_never_gets_to_say_a_word_is_named_in_time",
    ),
    "checkpoints": guard("checkpoints = None", PROCESSES + "test_so_many_checkpoints_are_kept"),
    "checkpoint_every": guard(
        "checkpoint_every = None", PROCESSES + "test_so_many_checkpoints_are_kept"
    ),
    "checkpoint_seconds": guard(
        "checkpoint_seconds = None", PROCESSES + "test_seconds_between_checkpoints"
    ),
    "keep_checkpoints": guard(
        "keep_checkpoints = 3", PROCESSES + "test_so_many_checkpoints_are_kept"
    ),
    "resume": guard("resume = False", RESUME + "test_a_missing_checkpoint_is_no_start"),
    "changed": guard(
        "changed = False",
        RESUME + "test_another_job_of_the_same_shape_is_refused_unless_that_is_meant",
    ),
    "max_restarts": guard(
        "max_restarts = 3", "tests/faults/test_kills.py::test_what_the_users_code_did_is_said"
        "[segfault-TaskFailed-was killed by SIGSEGV-1]",
    ),
}  # fmt: skip

# One that is "groups = 1" above is ignored for the whole run; these are deeper.
DEEPER = {
    "barrier, in a task": (
        "horn/process/rendezvous.py", 'every_superstep=run.barrier == "zookeeper"',
        "every_superstep=False", TRAIN["barrier"].tests,
    ),
    "transport, in a run": (
        "horn/executor/launch.py", "url = transports.load(settings.transport).default_url", 'url = "shm://"',
        TRAIN["transport"].tests,
    ),
    "threads, in a process": (
        "horn/executor/processes.py", "dict.fromkeys(BLAS, str(threads))",
        'dict.fromkeys(BLAS, "2")',
        TRAIN["threads"].tests,
    ),
    "backend, in a task": (
        "horn/executor/attempts.py", "backend=settings.backend", 'backend="kernels"',
        TRAIN["backend"].tests[:1],
    ),
}  # fmt: skip

JOB = {
    "network": guard(
        'set_(self, "network", self.network.rebuilt(changes={"layer1": {"size": 3}}))',
        PROCESSES + "test_the_network_is_the_one_that_is_given",
    ),
    "data": guard(
        'set_(self, "data", Dataset(self.data.x * 0, self.data.y))',
        PROCESSES + "test_the_data_are_those_that_are_given",
    ),
    "optimizer": guard(
        'set_(self, "optimizer", SGD())',
        PROCESSES + "test_the_optimizer_is_the_one_that_is_given",
    ),
    "batch_size": guard(
        'set_(self, "batch_size", 32)',
        TRAINING + "test_every_epoch_visits_every_sample_once_in_the_order_of_seed_and_epoch",
    ),
    "epochs": guard(
        'set_(self, "epochs", self.epochs and 10)',
        TRAINING + "test_every_epoch_visits_every_sample_once_in_the_order_of_seed_and_epoch",
    ),
    "iterations": guard(
        'set_(self, "iterations", None); set_(self, "epochs", 10)',
        TRAINING + "test_iterations_that_end_inside_an_epoch_report_the_partial_epoch",
    ),
    "validation": guard(
        'set_(self, "validation", None)',
        TRAINING + "test_validation_fraction_is_the_part_held_out",
    ),
    "test": guard(
        'set_(self, "test", None)', TRAINING + "test_test_data_are_measured_once_at_the_end"
    ),
    "target": guard(
        'set_(self, "target", "labels")',
        PROCESSES + "test_the_target_is_what_outputs_are_compared_with",
    ),
    "dtype": guard(
        'set_(self, "dtype", "float32")',
        PROCESSES + "test_the_type_of_numbers_is_that_of_the_model",
    ),
    "check": guard(
        'set_(self, "check", True)',
        "tests/api/test_check.py::test_training_checks_first_unless_told_not_to",
    ),
    "callbacks": guard(
        'set_(self, "callbacks", ())',
        "tests/api/test_callbacks.py::test_hooks_are_called_in_their_order_and_see_where_training_is",
        "tests/executor/test_callbacks.py::test_progress_and_callbacks_see_the_same_rows",
    ),
    "initial": guard(
        'set_(self, "initial", None); set_(self, "network", self.network.rebuilt())',
        "tests/api/test_initial.py::test_a_job_begins_with_what_was_learned[model-{}]",
    ),
    "frozen": guard(
        'set_(self, "network", self.network.freezing(()))',
        "tests/api/test_frozen.py::test_what_is_frozen_stays_and_the_rest_learns[one process]",
    ),
    "early_stopping": guard(
        'set_(self, "early_stopping", None)',
        TRAINING + "test_early_stopping_keeps_the_best_and_restores_it",
        TRAINING + "test_early_stopping_can_watch_accuracy",
    ),
    "keep_best": guard(
        'set_(self, "keep_best", False)', TRAINING + "test_keep_best_alone_trains_to_the_end"
    ),
    "name": guard('set_(self, "name", "")', PROCESSES + "test_the_name_is_in_the_facts"),
    "sample_weight": guard(
        'set_(self, "data", replace(self.data, weight=None))',
        "tests/parity/test_sample_weights.py::test_what_a_sample_weighs_is_how_often_it_is_there",
    ),
    "class_weight": guard(
        'set_(self, "data", replace(self.data, weight=None))',
        "tests/parity/test_sample_weights.py::test_balanced_classes_weigh_the_same",
    ),
    "metrics": guard(
        'set_(self, "metrics", ())',
        "tests/api/test_metrics.py::test_metrics_are_columns_of_the_history_and_of_the_last_word",
    ),
    "normalize": guard(
        'set_(self, "data", replace(self.data, normalization=None))',
        "tests/api/test_normalize.py::test_features_are_normalized_wherever_it_computes",
    ),
    "augment": guard(
        'set_(self, "augment", None)',
        "tests/api/test_augment.py::test_images_are_changed_alike_wherever_it_computes",
    ),
    "stateful": guard(
        'set_(self, "data", self.data.with_fields(pieces=1))',
        "tests/parity/test_stateful.py::test_one_long_sequence_is_cut_into_lanes",
        "tests/parity/test_stateful.py::test_in_pieces_a_sequence_is_answered_as_whole",
    ),
    "buckets": guard(
        'set_(self, "buckets", 0)',
        "tests/parity/test_time_ragged.py::test_like_lengths_lie_together",
    ),
    "truncate": guard(
        'set_(self, "network", self.network.of_steps(100, asks_each=False))',
        "tests/parity/test_stateful.py::test_one_long_sequence_is_cut_into_lanes",
    ),
    "recompute": guard(
        'set_(self, "recompute", None)',
        "tests/parity/test_recompute.py::test_a_job_of_many_steps_takes_less_memory",
    ),
    "aggregates": guard(
        'set_(self, "aggregates", {})',
        "tests/parity/test_aggregates.py::test_aggregates_are_columns_with_what_they_say",
    ),
}

SUBMIT = {
    "target": guard(
        'target = "job.py"', COMMAND + "test_a_target_is_a_file_a_module_or_a_name_in_one"
    ),
    "args": told("args", "args = ()"),
    "groups": told("groups", 'options["groups"] = 1'),
    "tasks": told("tasks", 'options["tasks"] = 1'),
    "servers": told("servers", 'options["servers"] = None', f"{HERE}[guests]", f"{THERE}[guests]"),
    "strategy": told("strategy", 'options["strategy"] = "allreduce"'),
    "barrier": told("barrier", 'options["barrier"] = "message"'),
    "transport": told("transport", 'options["transport"] = "shm"'),
    "pins": told("pins", "pins = ()"),
    "trace": guard('options["trace"] = None', f"{HERE}[trace]"),
    "profile": guard(
        'options["profile"] = None', f"{HERE}[profile]", f"{HERE}[profile in a file]"
    ),
    "superstep_timeout": told("superstep_timeout", 'superstep_timeout = "60s"'),
    "start_timeout": told("start_timeout", 'options["start_timeout"] = "60s"'),
    "checkpoint_every": told(
        "checkpoint_every", 'options["checkpoint_every"] = None', f"{HERE}[checkpoint_seconds]",
        f"{THERE}[checkpoint_seconds]",
    ),
    "checkpoints": guard('options["checkpoints"] = None', f"{HERE}[checkpoints]"),
    "resume": guard('options["resume"] = None', f"{HERE}[resume]", f"{HERE}[resume from]"),
    "changed": guard(
        'options["changed"] = False', f"{HERE}[changed]",
        COMMAND + "test_resume_refuses_a_changed_job_and_goes_on_with_it_where_that_is_said",
    ),
    "max_restarts": told("max_restarts", 'options["max_restarts"] = 3'),
    "settings": told(
        "settings", "settings = ()", f"{HERE}[settings of the optimizer]",
        f"{THERE}[settings of the optimizer]", f"{HERE}[settings of the strategy]",
        f"{THERE}[settings of the strategy]",
    ),
    "zk_hosts": guard(
        "zk_hosts = None",
        WORDS + "test_a_cluster_is_asked_where_and_with_the_key_that_is_said",
    ),
    "key_file": guard(
        "key_file = None",
        WORDS + "test_a_cluster_is_asked_where_and_with_the_key_that_is_said",
    ),
    "zk_tls": guard(
        'import os; os.environ.pop("HORN_ZK_TLS", None)',
        WORDS + "test_zookeeper_is_asked_by_tls_where_that_is_said",
    ),
    "local": guard("local = False", WORDS + "test_local_is_here_whatever_the_environment_says"),
    "detach": guard("detach = False", WORDS + "test_the_name_is_that_of_the_submission"),
    "name": guard("name = None", WORDS + "test_the_name_is_that_of_the_submission"),
    "working_dir": guard("working_dir = None", WORDS + "test_the_folder_that_is_sent"),
    "seed": told("seed", "seed = None"),
    "output": guard("output = None", COMMAND + "test_output_names_the_model_file"),
    "dry_run": guard(
        "dry_run = False", COMMAND + "test_dry_run_prints_the_plan_and_writes_nothing"
    ),
    "assume": guard("assume = None", "tests/cli/test_dry_run.py::test_machines_that_are_not_here"),
    "backend": told("backend", 'backend = "kernels"'),
    "threads": told("threads", 'options["threads"] = None'),
    "timeout": told("timeout", "timeout = None"),
    "as_json": guard("as_json = False", COMMAND + "test_json_is_one_object"),
    "quiet": guard("quiet = False", COMMAND + "test_quiet_says_the_result_only"),
    "verbose": guard(
        "verbose = False", "tests/cli/test_submit_tasks.py::test_verbose_shows_a_row_per_task"
    ),
}  # fmt: skip

# A cluster is handed the command's words as they were read, not its variables.
HANDED = (
    "words = click.get_current_context().params; "
    "words |= {key: v for key, v in {**options, **locals()}.items() if key in words}"
)
# Where the lines go: before these. What follows the line of an option comes last.
PLACES = {
    "train": ("horn/train.py", '    if resume == "changed":\n', TRAIN),
    # the end of __post_init__
    "job": ("horn/job.py", "\n    @property\n    def n_iterations(", JOB),
    "submit": (
        "horn/cli/submit.py",
        "    if zk_hosts and not local and not dry_run:\n",
        SUBMIT,
        HANDED,
    ),
}
