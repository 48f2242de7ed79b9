"""Benchmarks of one GPU: what `tileoverlap bench` measures, callable from a program.

A rank's operator runs with the whole GPU; its peers' memory lies on the same device or in the
host's (a loop-back link). A whole layer runs on W ranks that share the GPU. Needs torch, which
holds the tensors and brings what others use, to compare with.
"""
