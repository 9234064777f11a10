import torch

# The models of the tests are so small that a second thread only makes them wait.
torch.set_num_threads(1)
