/* Sends threads through stages of random sizes, again and again: ends with 1 where a piece was not done exactly once, or
 * one began before the stage before it was over. `check_stages THREADS REGIONS`. */
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "pool.h"

using namespace headway;

namespace {

const int STAGES = 24;

struct Region {
    Stages stages;
    std::vector<std::vector<int>> times; /* by stage and piece */
    std::atomic<int> early{0};

    explicit Region(int threads) : stages(threads), times(STAGES) {}

    void run(int worker) {
        Walk walk(stages, worker);
        for (size_t i = 0; i < STAGES; i++) {
            walk.share(static_cast<int>(times[i].size()), [&](int piece) {
                for (int count : i ? times[i - 1] : std::vector<int>()) early += count != 1;
                volatile int spent = 0;
                while (spent < piece * 37 % 200) spent = spent + 1;
                times[i][static_cast<size_t>(piece)]++;
            });
        }
    }
};

} // namespace

int main(int, char **words) {
    const int threads = std::atoi(words[1]), regions = std::atoi(words[2]);
    std::mt19937 random(20261201);
    Pool pool(threads, 20);
    Region region(threads);
    long wrong = 0;
    for (int i = 0; i < regions; i++) {
        region.stages.reset();
        for (std::vector<int> &times : region.times) times.assign(random() % 4 ? random() % 40 : random() % 2, 0);
        pool.run([](void *context, int worker) { static_cast<Region *>(context)->run(worker); }, &region, i % 7 == 0);
        for (const std::vector<int> &times : region.times)
            for (int count : times) wrong += count != 1;
    }
    std::printf("%ld pieces not done once, %d stages begun early\n", wrong, region.early.load());
    return wrong || region.early.load();
}
