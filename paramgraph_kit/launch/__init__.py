"""From words to launches: the workspace plan, the generated launch function, and a partition's executables."""
