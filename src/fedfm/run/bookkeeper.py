"""The bookkeeper of a run: its rounds, scores and files, simulated or deployed."""

from collections.abc import Callable

from fedfm.config import Config
from fedfm.engine.profile import phase
from fedfm.rounds.state import State
from fedfm.run.folder import RunFolder
from fedfm.run.records import Best, Progress, Result, RoundRecord

Watcher = Callable[[RoundRecord], None]
"""Called after every round, when all runs that are trained together have saved it."""

FineTune = Callable[[Best], Best]
"""Returns the reported model with what clients get after local fine-tuning."""


class Bookkeeper:
    """Loads, saves and finishes the progress of one run; without a folder only in memory."""

    def __init__(
        self,
        config: Config,
        folder: RunFolder | None,
        watch: Watcher | None,
        deployed: bool = False,
    ) -> None:
        self.config, self.folder, self.watch = config, folder, watch
        self.every = 1 if deployed else config.checkpoint_every
        self.secure = deployed and config.deployment.secure
        self.saved = 0
        """How many rounds the folder has."""

    def begin(self, start: State) -> Progress:
        """Return the progress at the last checkpoint, or that of a new run."""
        progress = (self.folder and self.folder.load(start)) or Progress(start)
        self.saved = len(progress.records)
        return progress

    def save(self, progress: Progress) -> None:
        """Write the rounds and a checkpoint every so many rounds, and after the last one."""
        round, every = progress.state.round, self.every
        due = round == self.config.training.rounds or (every > 0 and round % every == 0)
        if self.folder and due:
            with phase("checkpoint"):
                self.folder.save(progress, self.saved, checkpoint=every > 0)
            self.saved = len(progress.records)
        if due or not self.folder or not every:
            progress.state.clients.tidy()

    def notify(self, progress: Progress) -> None:
        """Call the watcher with the last evaluated round."""
        if self.watch and progress.records:
            self.watch(progress.records[-1])

    def finish(self, progress: Progress, fine_tune: FineTune = lambda best: best) -> Result:
        """Write the reported model and the summary; return the result."""
        assert progress.best is not None
        best, last_rounds = fine_tune(progress.best), self.config.training.last_rounds
        if last_rounds > 1:
            best = best.average(progress.records[-last_rounds:])
        name, seed = self.config.composed.name, self.config.seed
        privacy = describe_privacy(self.config, self.secure)
        result = Result(name, seed, best, progress.records, privacy)
        if self.folder:
            self.folder.finish(result)
        return result


def describe_privacy(config: Config, secure: bool = False) -> str | None:
    """Describe the privacy loss of a client; return None without privacy."""
    privacy, rounds = config.make_privacy(), config.training.rounds
    return privacy.describe_run(config.composed, rounds, secure) if privacy else None
