"""The labyrinth: a simulated maze, and the training of the small world model that ships with Ithaka."""
