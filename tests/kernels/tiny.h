/* tiny.h - a model of utils/mkmodel in a temporary file, opened, and plans over it. */
#ifndef TESTS_KERNELS_TINY_H
#define TESTS_KERNELS_TINY_H

#include "model/model.h"
#include "utils/mkmodel_build.h"

/* Opens a model made from the options; its file is gone already. Fails the test on an error. */
struct model *tiny_model(const struct mkmodel_options *options);

#endif
