import sys, time, os, signal, faulthandler
from horn.strategies import Topology

T = Topology(4, 1, 3)


def body(t, pipe, *a):
    import tests.strategies.bodies as b
    import horn.strategies._server as s

    f = open(f"/tmp/h4/dump{t.task}", "w")
    faulthandler.register(signal.SIGUSR1, file=f, all_threads=True)
    keep = {}
    orig = b.Server

    class S(orig):
        def __init__(self, *x):
            super().__init__(*x)
            keep["s"] = self

    b.Server = S
    ow = b.Wire

    class W(ow):
        def __init__(self, *x):
            super().__init__(*x)
            keep["w"] = self

    b.Wire = W

    def usr2(*_):
        g = open(f"/tmp/h4/state{t.task}", "w")
        if "s" in keep:
            s = keep["s"]
            print(
                "left",
                s.left,
                "pulls",
                s._pulls,
                "final",
                s._final,
                "pushes",
                [k.n_pushes for k in s.kept.values()],
                file=g,
            )
        if "w" in keep:
            print("early", [(m.src, m.meta) for m in keep["w"]._early], file=g)
        for r, p in t._peers.items():
            print(
                r,
                "out",
                p.n_out,
                "stuck",
                p.stuck is not None,
                "q",
                len(p.queue),
                "urg",
                len(p.urgent),
                "credit",
                p.credit - p.sent,
                "window",
                p.window.last,
                p.window.missing,
                "left",
                p.left,
                file=g,
            )
        print("loose", len(t._loose), "gone", t.link.gone(), file=g)
        g.close()

    signal.signal(signal.SIGUSR2, usr2)
    return b.sums(t, pipe, *a)


if __name__ == "__main__":
    from tests.transport.groups import Processes

    scheme = sys.argv[1]
    n = int(sys.argv[2])
    reps = int(sys.argv[3])
    for i in range(reps):
        t0 = time.time()
        with Processes(scheme, T.n_ranks, "tests.strategies._diag:body", T, n, 16) as run:
            got = {}
            ends = time.time() + 12
            while len(got) < T.n_ranks and time.time() < ends:
                for r in range(T.n_ranks):
                    if r not in got and run.pipes[r].poll(0.02):
                        got[r] = run.pipes[r].recv()
            late = [r for r in range(T.n_ranks) if r not in got]
            print(i, scheme, round(time.time() - t0, 2), "late", late, flush=True)
            if late:
                for r in late:
                    os.kill(run.processes[r].pid, signal.SIGUSR1)
                    os.kill(run.processes[r].pid, signal.SIGUSR2)
                time.sleep(2)
                for r in late:
                    run.processes[r].kill()
                break
