"""A template process: the Python processes of a run are forks of one that has imported everything.

Upstream behaviour: Ray and vLLM start every worker as a fresh interpreter, and each of them imports
torch, transformers, verl and vLLM again: 15 to 30 seconds of processor time apiece, which is most of
the start of a run on two cores. On a GPU machine it is never used: there a fork could inherit CUDA state.

`process.py` starts it from the launcher, and runs the driver in its first fork. `client.py` and the script
`python` stand in for the interpreter on the command lines of Ray and `multiprocessing`, ask for a fork and
wait for it.
"""
