"""Which runs `make bench-learning` makes, and that `streamrl up` takes what each is told."""

import tomllib
from pathlib import Path

import pytest
from bench_learning import HERE, make, parse
from learning_study.runs import CORRECTIONS, DEFAULT, TASK_FOLDER, TASKS, Run, Setting, arguments, plan, settings

from streamrl.config import Config, load_args
from streamrl.config.schema.algorithm import AlgorithmConfig
from streamrl.config.schema.run import ModelConfig
from streamrl.models.load import prepare_model_folder


@pytest.fixture(scope="module")
def runs_folder(tmp_path_factory) -> Path:
    """A folder of run folders in which every warm-up has left a model: a configuration with a model must find it."""
    runs = tmp_path_factory.mktemp("runs")
    warm = [runs / Run(task, seed).name for task in TASKS for seed in range(3)]
    prepare_model_folder(ModelConfig(preset="tiny-qwen3"), 0, runs / "model")
    for folder in warm:
        folder.mkdir()
        (folder / "start").symlink_to(runs / "model")
    return runs


def config_of(run: Run, runs: Path, steps: int = 300) -> Config:
    """The configuration that `streamrl up` makes of what the run is told."""
    path, *rest = arguments(run, steps, runs, HERE)
    return load_args(path, rest)


def test_without_staleness_the_corrections_are_one_setting():
    assert settings([4, 0, 4]) == [Setting(0, DEFAULT), *(Setting(4, name) for name in CORRECTIONS)]


def test_the_whole_bench_makes_thirteen_settings_of_each_task_and_seed():
    options = parse([])
    runs = list(plan(options.tasks, options.seeds, options.staleness))
    assert len(set(runs)) == len(runs) == len({run.name for run in runs})
    for task in TASKS:
        for seed in range(3):
            assert sum((run.task, run.seed) == (task, seed) and run.setting is not None for run in runs) == 13


def test_a_run_comes_after_the_warm_up_that_it_begins_from():
    runs = list(plan(list(TASKS), 2, [0, 4]))
    for place, run in enumerate(runs):
        assert runs.index(run.warm) <= place


def test_a_seed_is_finished_before_the_next_begins():
    seeds = [run.seed for run in plan(list(TASKS), 3, [0, 1])]
    assert seeds == sorted(seeds)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("setting", settings([0, 1, 2, 4, 8]), ids=str)
def test_a_run_has_the_bound_and_the_correction_of_its_setting(runs_folder, task, setting):
    run = Run(task, 1, setting)
    config = config_of(run, runs_folder, steps=120)
    algorithm = config.learner.algorithm
    assert {"proximal": algorithm.proximal, "correction": algorithm.correction} == CORRECTIONS[setting.correction]
    assert config.learner.max_staleness == setting.staleness
    assert config.learner.lead == max(1, setting.staleness)
    assert (config.name, config.seed, config.learner.steps) == (run.name, 1, 120)


@pytest.mark.parametrize("task", TASKS)
def test_all_runs_of_a_task_and_seed_take_equally_many_rollouts_from_one_model(runs_folder, task):
    configs = [config_of(Run(task, 2, setting), runs_folder) for setting in settings([0, 1, 4])]
    assert {(one.learner.steps, one.rollouts_per_step) for one in configs} == {(300, 512)}
    assert {one.model.path for one in configs} == {str(runs_folder / Run(task, 2).name / "start")}
    assert {one.warmup.max_steps for one in configs} == {0}


@pytest.mark.parametrize("task", TASKS)
def test_the_warm_up_makes_its_model_and_all_but_skips_the_stream(runs_folder, task):
    config = config_of(Run(task, 0), runs_folder)
    assert config.warmup.max_steps > 0
    assert config.model.path is None
    assert config.learner.steps == 1


def test_the_default_correction_is_that_of_a_configuration_which_names_none():
    algorithm = AlgorithmConfig()
    assert CORRECTIONS[DEFAULT] == {"proximal": algorithm.proximal, "correction": algorithm.correction}


def test_a_quick_look_is_kept_apart_from_the_table():
    whole, quick = parse([]), parse(["--quick"])
    assert quick.name != whole.name
    assert (quick.tasks, quick.seeds, quick.staleness) == (["arithmetic"], 1, [0, 4])
    assert quick.steps < whole.steps


def test_parts_are_chosen_and_the_rest_stays():
    options = parse(["--tasks", "chain_sum", "--staleness", "0", "8"])
    assert (options.tasks, options.seeds, options.staleness, options.steps) == (["chain_sum"], 3, [0, 8], 300)


def test_a_run_that_up_refuses_ends_the_bench_with_its_words_and_its_folder(tmp_path):
    run = Run("arithmetic", 0, Setting(4, "tis"))
    with pytest.raises(SystemExit, match=rf"(?s)exit code 2.*learner.steps.*remove {tmp_path / run.name}"):
        make(run, 0, tmp_path)


def test_the_module_of_a_task_lies_where_its_runs_look_for_modules():
    tasks = [tomllib.loads((HERE / file).read_text()).get("task", {}).get("name", "") for file in TASKS["chain_sum"]]
    (module,) = (name.partition(":")[0] for name in tasks if ":" in name)
    assert (HERE / TASK_FOLDER / f"{module}.py").is_file()
