"""Files and tables of numbers: what stands in them, as arrays. ``horn.data`` makes data sets of it.

The rooms: ``files`` (a file that is opened or is not there), ``parts`` (of one array), ``csv``,
``idx``, ``npy``, ``npz``, ``tables`` (of pandas, polars, pyarrow), and ``download`` (a known file
and its checksum).
"""
