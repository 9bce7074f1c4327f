/* Memory that an encoder's step goes through, and the clock that its time is read from. */
#ifndef HEADWAY_ENCODER_ROOM_H
#define HEADWAY_ENCODER_ROOM_H

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>

#include "headway.h"
#include "product_work.h"

namespace headway {

/* Nanoseconds of each kind of work, of one thread in one run. */
class Clock {
  public:
    void begin(bool on) {
        on_ = on;
        for (int64_t &spent : spent_ns_) spent = 0;
        last_ns_ = on ? now_ns() : 0;
    }
    /* What has passed since the last such call, or the beginning, was `what`. */
    void took(int what) {
        if (!on_) return;
        const int64_t now = now_ns();
        spent_ns_[what] += now - last_ns_;
        last_ns_ = now;
    }
    void add_to(std::atomic<int64_t> *total) const {
        for (int i = 0; on_ && i < HEADWAY_ENCODER_PARTS; i++) total[i].fetch_add(spent_ns_[i]);
    }

  private:
    static int64_t now_ns() {
        return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
            .count();
    }

    bool on_ = false;
    int64_t last_ns_ = 0, spent_ns_[HEADWAY_ENCODER_PARTS] = {};
};

/* Floats that are handed out one after another, each piece from a multiple of 16 on. */
class Slab {
  public:
    /* Room for so many in all; what was there is lost. */
    void reserve(int64_t floats) {
        if (floats > size_) {
            memory_.reset();
            size_ = 0;
            memory_.reset(new char[static_cast<size_t>(floats) * sizeof(float) + 64]);
            size_ = floats;
        }
        next_ = reinterpret_cast<float *>(aligned(memory_.get()));
    }
    float *take(int64_t floats) {
        float *taken = next_;
        next_ += padded(floats);
        return taken;
    }
    static int64_t padded(int64_t floats) { return (floats + 15) / 16 * 16; }

  private:
    std::unique_ptr<char[]> memory_;
    int64_t size_ = 0;
    float *next_ = nullptr;
};

/* What rows keep from layer to layer: of one part, or of the step where threads share it. */
struct Kept {
    Slab memory;
    int64_t hidden;
    int first; /* row */
    float *residuals, *heads[2];

    /* `two`: a layer's queries, keys and values, beside those of the one before, which others may still read. */
    void make(int64_t rows, int64_t size, bool two) {
        hidden = size;
        memory.reserve(Slab::padded(rows * hidden) + (two ? 2 : 1) * Slab::padded(rows * 3 * hidden));
        residuals = memory.take(rows * hidden);
        heads[0] = memory.take(rows * 3 * hidden);
        heads[1] = two ? memory.take(rows * 3 * hidden) : heads[0];
    }
    float *residual_of(int row) const { return residuals + (row - first) * hidden; }
    float *heads_of(size_t layer, int row) const { return heads[layer % 2] + (row - first) * 3 * hidden; }
};

/* What a thread needs besides, for the part that it computes. */
struct Room {
    Slab memory;
    float *attended, *firsts, *wide, *scratch;
    Inputs narrow, broad; /* rounded: [rows, hidden], [MLP rows, intermediate] */
    Clock clock;

    void make(int64_t rows, int64_t mlp_rows, int64_t inputs, const Weights &up, const Weights &down,
              int64_t scratch_floats) {
        const int64_t hidden = up.inputs, wides = mlp_rows * up.outputs;
        memory.reserve(Slab::padded(rows * hidden) + Slab::padded(inputs * hidden) + Slab::padded(wides) +
                       scratch_floats);
        attended = memory.take(rows * hidden);
        firsts = memory.take(inputs * hidden);
        wide = memory.take(wides);
        scratch = memory.take(scratch_floats);
        narrow.make(rows, up.padded_inputs);
        broad.make(mlp_rows, down.padded_inputs);
    }
};

} // namespace headway
#endif
