"""From problems to training batches: prompts, generation, rewards, admission, the replay queue, batches."""
