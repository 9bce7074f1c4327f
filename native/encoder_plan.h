/* How a step of whole inputs is shared out among threads. */
#ifndef HEADWAY_ENCODER_PLAN_H
#define HEADWAY_ENCODER_PLAN_H

#include <algorithm>
#include <cstdint>
#include <vector>

namespace headway {

/* Parts of a step for each thread: more, and a thread that was disturbed leaves its share to the others; fewer, and
 * weights are read less often. */
const int PARTS_PER_THREAD = 3;
/* Positions that are worth a part of their own, and the fewest of a part of an input that threads share. */
const int LEAST_ROWS = 48, LEAST_SHARED_ROWS = 8;

/* Rows (positions) of a step, and the inputs that they are of. */
struct Part {
    int row, rows, input, inputs;
};

/* Parts are whole inputs, which a thread takes through all layers by itself; or, `together`, any rows, and no part
 * begins a layer before all have left the one before. */
struct EncoderPlan {
    std::vector<int> starts; /* first rows of the inputs; last, the number of rows */
    std::vector<Part> parts; /* the largest first */
    bool together;
    int longest; /* input */

    int rows() const { return starts.back(); }
    int largest() const {
        int most = 0;
        for (const Part &part : parts) most = std::max(most, part.rows);
        return most;
    }

    void make(const int32_t *lengths, int inputs, int threads) {
        starts.assign(1, 0);
        longest = 0;
        for (int i = 0; i < inputs; i++) {
            starts.push_back(starts.back() + lengths[i]);
            longest = std::max(longest, static_cast<int>(lengths[i]));
        }
        share_inputs(lengths, inputs, worth(threads));
        /* Whole inputs that come out too unequal: all threads share all of them. */
        together = threads > 1 && static_cast<int64_t>(largest()) * threads * 4 > static_cast<int64_t>(rows()) * 5;
        if (together) share_rows(std::max(worth(threads), std::min(threads, rows() / LEAST_SHARED_ROWS)));
    }

  private:
    int worth(int threads) const { return std::max(1, std::min(threads * PARTS_PER_THREAD, rows() / LEAST_ROWS)); }

    /* Inputs one after another, `count` parts of about as many rows each. */
    void share_inputs(const int32_t *lengths, int inputs, int count) {
        parts.clear();
        for (int i = 0, last = -1; i < inputs; i++) {
            const int64_t middle = 2 * static_cast<int64_t>(starts[static_cast<size_t>(i)]) + lengths[i];
            const int place = static_cast<int>(std::min<int64_t>(count - 1, middle * count / (2 * rows())));
            if (place != last) parts.push_back({starts[static_cast<size_t>(i)], 0, i, 0});
            last = place;
            parts.back().inputs++;
            parts.back().rows += lengths[i];
        }
        std::stable_sort(parts.begin(), parts.end(), [](const Part &a, const Part &b) { return a.rows > b.rows; });
    }

    void share_rows(int count) {
        parts.clear();
        size_t input = 0;
        for (int i = 0; i < count; i++) {
            Part part{};
            part.row = static_cast<int>(static_cast<int64_t>(rows()) * i / count);
            part.rows = static_cast<int>(static_cast<int64_t>(rows()) * (i + 1) / count) - part.row;
            while (starts[input + 1] <= part.row) input++;
            part.input = static_cast<int>(input);
            for (size_t j = input; j + 1 < starts.size() && starts[j] < part.row + part.rows; j++) part.inputs++;
            parts.push_back(part);
        }
    }
};

} // namespace headway
#endif
