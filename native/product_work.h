/* A product's work, cut into pieces for the threads of a region. */
#ifndef HEADWAY_PRODUCT_WORK_H
#define HEADWAY_PRODUCT_WORK_H

#include <cstdint>
#include <memory>
#include <new>

#include "pool.h"
#include "products.h"

/* Packed weights; the memory that they lie in is the caller's. */
struct headway_weights : headway::Weights {
    int64_t bytes = 0;
};

namespace headway {

/* Rows that are rounded at a time. */
enum { ROUNDED_ROWS = 4 };

/* Rows of inputs on their way into a product. */
struct Inputs {
    std::unique_ptr<char[]> memory;
    int64_t size = 0, rows = 0;
    Rounded rounded;

    /* Room for so many; what was there is lost. */
    void make(int64_t row_count, int64_t padded_inputs);
};

/* How a product's columns and rows are shared out: `count` pieces. */
struct Cut {
    int halves, rows_each, row_pieces, count;

    Cut(const Weights &weights, int64_t rows, int threads);
};

/* Brings the weights of a thread's part of a product nearer while it has nothing else to do. */
class Ahead {
  public:
    Ahead() = default;
    Ahead(const Weights &weights, const Cut &cut, const Walk &walk);

    void operator()() {
        for (int i = 0; i < 4 && at_ < end_; i++, at_ += 64) __builtin_prefetch(at_, 0, 2);
    }

  private:
    const int8_t *at_ = nullptr, *end_ = nullptr;
};

/* Computes one piece. */
void multiply_piece(const ProductKernels &kernels, const Weights &weights, const Cut &cut, int piece,
                    const Inputs &inputs, Ending ending, float *out);

/* Rounds the piece's rows, up to ROUNDED_ROWS, for `weights`. scratch: [padded_inputs]. */
void round_piece(const ProductKernels &kernels, const Weights &weights, const void *x, bool bf16, const float *norm,
                 float eps, int piece, Inputs &inputs, float *scratch);

inline int rounding_pieces(int64_t rows) { return static_cast<int>((rows + ROUNDED_ROWS - 1) / ROUNDED_ROWS); }
inline char *aligned(char *p) { return reinterpret_cast<char *>((reinterpret_cast<uintptr_t>(p) + 63) / 64 * 64); }
/* Columns of what leaves. */
inline int64_t columns_of(const Weights &weights) { return weights.gated ? weights.outputs / 2 : weights.outputs; }

} // namespace headway
#endif
