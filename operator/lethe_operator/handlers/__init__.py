"""Each handler turns a watch event into a key of the queue. There are no finalizers and no stored state: only `kopf.on.event`."""
