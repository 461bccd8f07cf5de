"""Where jobs run: the driver that walks the graph, and engines for processes, Ray and Slurm."""
