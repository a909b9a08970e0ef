// What of LibTorch this project computes with: tensors, their operators, autograd, devices. In the
// place of <torch/torch.h>, which brings LibTorch's modules, optimizers and loaders of data too:
// nothing here uses them, and they double the time and memory that a file compiles with. Used by
// all of worker/ that computes with tensors. Any thread.
#pragma once

#include <ATen/ATen.h>
#include <torch/autograd.h>
#include <torch/cuda.h>
#include <torch/types.h>
#include <torch/utils.h>
