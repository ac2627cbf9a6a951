"""Worker hosts: the process around one core `Worker`, its model runner, its KV pool and its end of the channel.

The host runs steps, copies bytes and carries messages; it decides nothing. Importing this package imports no torch.
"""
