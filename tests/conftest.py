import torch
from transformers.utils import logging as transformers_logging

# The models of the tests are so small that a second thread only makes them wait.
torch.set_num_threads(1)
# What a run says goes to the logger of transformers, which by itself keeps it from pytest.
transformers_logging.enable_propagation()
