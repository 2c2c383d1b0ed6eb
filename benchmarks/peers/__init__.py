"""How each contender does the work: programs that are run as ranks and obey the runner."""
