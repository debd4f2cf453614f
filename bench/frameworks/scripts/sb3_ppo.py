"""PPO of Stable-Baselines3 in an environment made here; its logger has the loss of each update."""

import gymnasium as gym
import numpy as np
import torch
import truth
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback

torch.set_num_threads(1)
total = 20 * 256


class Env(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (4,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 50
        return self.observation_space.sample(), {}

    def step(self, action):
        self.left -= 1
        return self.observation_space.sample(), float(action), self.left == 0, False, {}


class Watch(BaseCallback):
    def _on_rollout_start(self):
        values = self.model.logger.name_to_value
        if "train/loss" in values:
            truth.note(loss=float(values["train/loss"]))

    def _on_step(self):
        truth.note(done=self.model.num_timesteps)
        return True


model = PPO("MlpPolicy", Env(), n_steps=256, batch_size=16, n_epochs=4, device="cpu", verbose=0)
truth.slow(model.policy.mlp_extractor)
steps = 0


def stepped(optimizer, args, kwargs):
    global steps
    steps += 1
    truth.note(step=steps)
    if steps == 30:
        truth.count_bytes(model.policy, optimizer)


model.policy.optimizer.register_step_post_hook(stepped)
truth.begin(total=total, phase_unknown=True, no_input=True, unpoisoned=True)
model.learn(total, callback=Watch())
