"""Who takes part in a round: a fixed number of clients, or a coin for each."""

import numpy as np
import pytest

from fedfm import FedAvg, Training, UserError, simulate
from fedfm.config import load_config, parse
from fedfm.deploy.checks import check_deployable
from fedfm.rounds.sampling import draw_cohort, toss_coins

EVERYBODY = range(20)


def tosses(participation: float, rounds: int = 2000) -> list[list[int]]:
    return [toss_coins(EVERYBODY, participation, 3, round) for round in range(rounds)]


def test_each_client_takes_part_with_its_probability():
    joins = np.array([[client in cohort for client in EVERYBODY] for cohort in tosses(0.3)])
    assert np.abs(joins.mean(0) - 0.3).max() < 0.04
    sizes = joins.sum(1)
    assert abs(sizes.mean() - 6) < 0.2
    assert abs(sizes.var() - 20 * 0.3 * 0.7) < 0.4  # binomial: clients do not know of each other
    assert np.abs(np.corrcoef(joins.T) - np.eye(20)).max() < 0.1


def test_somebody_always_takes_part_and_nobody_is_preferred():
    cohorts = tosses(0.001)
    assert {len(cohort) for cohort in cohorts} <= {1, 2}
    counts = np.bincount([client for cohort in cohorts for client in cohort], minlength=20)
    assert counts.min() > 60
    assert counts.max() < 145


def test_with_certainty_all_take_part():
    assert toss_coins(EVERYBODY, 1.0, 0, 0) == [*EVERYBODY]


def test_a_toss_depends_on_seed_and_round_only():
    assert toss_coins(EVERYBODY, 0.3, 1, 5) == toss_coins(EVERYBODY, 0.3, 1, 5)
    assert toss_coins(EVERYBODY, 0.3, 1, 5) != toss_coins(EVERYBODY, 0.3, 1, 6)
    assert toss_coins(EVERYBODY, 0.3, 1, 5) != toss_coins(EVERYBODY, 0.3, 2, 5)


def test_by_default_a_round_has_a_fixed_number_of_clients():
    assert Training().sampling == "fixed"
    assert {len(draw_cohort(EVERYBODY, 0.3, 20, 3, round)) for round in range(100)} == {6}


def run(rounds: int, out=None, resume: bool = False, watch=None):
    training = Training(clients=8, rounds=rounds, epochs=1, participation=0.4, sampling="coin")
    return simulate("mlp", "digits", FedAvg(), training=training, partition={"kind": "iid"},
                    executor="stacked", out=out, resume=resume, watch=watch)  # fmt: skip


class Stop(Exception):
    pass


def test_a_run_draws_by_coins_and_a_resumed_run_repeats_its_draws(tmp_path):
    def stop(record):
        if record.round == 3:
            raise Stop

    whole = run(6)
    sent = [record.floats_up for record in whole.rounds]
    one = 17_226  # the parameters of the network
    assert sent == [one * len(toss_coins(range(8), 0.4, 0, round)) for round in range(6)]
    assert len(set(sent)) > 1
    with pytest.raises(Stop):
        run(6, tmp_path / "run", watch=stop)
    resumed = run(6, tmp_path / "run", resume=True)
    assert [r.floats_up for r in resumed.rounds] == sent
    assert [r.test_accuracy for r in resumed.rounds] == [r.test_accuracy for r in whole.rounds]


def test_other_words_are_refused():
    with pytest.raises(UserError, match="sampling"):
        Training(sampling="dice")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="sampling"):
        load_config("digits", ["sampling=dice"])


def test_privacy_and_deployments_need_a_fixed_number():
    with pytest.raises(UserError, match="sampling"):
        parse({"training": {"sampling": "coin"}, "method": "fedavg", "privacy": {}})
    with pytest.raises(UserError, match="sampling"):
        check_deployable(parse({"training": {"sampling": "coin"}}))
