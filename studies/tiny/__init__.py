"""How the tiny task's model is made and measured; the other toy tasks' models are made of these parts too."""
