"""From a cause to a key in the queue, a few lines each. No finalizers, nothing stored: only `kopf.on.event`."""
