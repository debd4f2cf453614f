"""How right `gpuscope predict` is: model families, real trainings of them, scores, and what is fitted to them."""
