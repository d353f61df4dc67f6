"""How the tiny world's model is made and measured; the other worlds' models are made of these parts too."""
