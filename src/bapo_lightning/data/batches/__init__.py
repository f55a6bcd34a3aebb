"""From groups to minibatches and micro-batches."""
