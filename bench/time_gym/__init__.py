"""The gym of time: how right ``gpuscope why`` is about real trainings on a real GPU."""
