"""Files of numbers: what stands in them, as arrays. ``horn.data`` makes data sets of it.

The rooms: ``files`` (a file that is opened or is not there), ``parts`` (of one array), ``csv``,
``idx``, ``npy``, ``npz``, and ``download`` (a known file and its checksum).
"""
