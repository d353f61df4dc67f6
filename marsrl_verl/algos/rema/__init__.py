"""ReMA (arXiv 2503.09501): a meta-thinking agent that says what to do, and a reasoning agent that does it."""

METHOD = "marsrl_verl.algos.rema.dialogue.method:ReMA"
METHODS = {"rema_single_turn": "marsrl_verl.algos.rema.single_turn.method:ReMASingleTurn"}
