"""fedfm with either executor, and the yardstick of stacked.py: a plain PyTorch loop.

On W1 the model after the warm-up is the plain loop's (given the batches of fedfm); on W2 the plain
loop shuffles by itself, so its own distance there says how far another order of batches leads.
"""

from bench.peer_runners.clock import Options, Watch
from bench.peer_runners.work import Weights, load
from bench.peer_runners.workloads import federation, named, workload
from bench.stacked import Ours, PlainLoop, Workload, shuffled


def system(name: str, work: Workload) -> Ours | PlainLoop:
    """The plain loop, or fedfm with the executor in its name."""
    if name != "plain":
        return federation(work, name.removeprefix("fedfm-"))
    fed = federation(work, "loop").fed
    return PlainLoop(work, fed, shuffled(fed))


def main() -> None:
    """Round after round."""
    options = Options.parse()
    work = load(options.file)
    trained, watch = system(options.system, workload(work.workload)), Watch(work)

    def weights() -> Weights:
        return named(work.workload, trained.weights())

    for _ in range(options.total):
        trained.advance()
        watch.lap(weights)
    watch.report(options, "torch" if options.system == "plain" else "fedfm")


if __name__ == "__main__":
    main()
