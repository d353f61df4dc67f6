"""ReMA (arXiv 2503.09501): a meta-thinking agent and a reasoning agent."""

METHODS = {"rema_single_turn": "marsrl_verl.algos.rema.single_turn:ReMASingleTurn"}
