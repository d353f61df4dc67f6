"""AttnRL (arXiv 2509.26628), and TreeRL (arXiv 2506.11902) on the same stages."""

METHOD = "marsrl_verl.algos.attnrl.method:AttnRL"
