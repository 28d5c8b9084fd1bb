import sys, time, os, cProfile, pstats
from horn.strategies import Topology
T=Topology(4,1,3)
def body(t, pipe, *a):
    import tests.strategies.bodies as b
    if t.task in (1,4) and a[-1]:
        pr=cProfile.Profile(); pr.enable()
    t0=time.monotonic(); c0=time.process_time()
    b.sums(t,pipe,*a[:3])
    w=time.monotonic()-t0; c=time.process_time()-c0
    if t.task in (1,4) and a[-1]:
        pr.disable()
        with open(f"/tmp/h4/prof{t.task}","w") as f: pstats.Stats(pr,stream=f).sort_stats("tottime").print_stats(25)
    return (round(w,2),round(c,2))
if __name__=="__main__":
    from tests.transport.groups import Processes
    scheme=sys.argv[1]; n=int(sys.argv[2]); every=int(sys.argv[3]); prof=int(sys.argv[4])
    with Processes(scheme, T.n_ranks, "tests.strategies._prof:body", T, n, every, prof) as run:
        print(scheme,n,every,[run.result(r)[0] for r in range(T.n_ranks)], os.getloadavg())
