"""Files and tables of numbers, read as arrays. ``horn.data`` makes data sets of them.

The modules: ``files`` (errors of opening), ``parts`` (of one array), ``csv``, ``idx``, ``npy``,
``npz``, ``tables`` (of pandas, polars, pyarrow), and ``download`` (known files and their
checksums).
"""
