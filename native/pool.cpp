#include "pool.h"

#include <chrono>
#include <exception>
#include <new>

#include "headway.h"

namespace headway {

Pool::Pool(int threads, int spin_us) : threads_(threads < 1 ? 1 : threads), spin_us_(spin_us < 0 ? 0 : spin_us) {}

Pool::~Pool() {
    ends_.store(true);
    {
        std::lock_guard<std::mutex> lock(mutex_);
    }
    wakes_.notify_all();
    for (std::thread &worker : workers_) worker.join();
}

void Pool::start() {
    started_ = true;
    try {
        workers_.reserve(static_cast<size_t>(threads_) - 1);
        for (int worker = 1; worker < threads_; worker++) workers_.emplace_back(&Pool::serve, this, worker);
    } catch (const std::exception &) {
        /* With fewer threads than asked for (a limit of the system), the work is shared by fewer. */
    }
}

void Pool::run(Region region, void *context, bool alone) {
    if (alone || threads_ == 1) return region(context, 0);
    if (!started_) start();
    region_ = region;
    context_ = context;
    epoch_.fetch_add(1);
    if (sleepers_.load()) {
        {
            std::lock_guard<std::mutex> lock(mutex_);
        }
        wakes_.notify_all();
    }
    region(context, 0);
    epoch_.fetch_add(1);
    for (int spins = 0; active_.load(); spins++) {
        relax();
        if (spins > 2000) std::this_thread::yield();
    }
}

void Pool::serve(int worker) {
    uint64_t seen = 0;
    while ((seen = next(seen))) {
        active_.fetch_add(1);
        if (epoch_.load() == seen) region_(context_, worker);
        active_.fetch_sub(1);
    }
}

uint64_t Pool::next(uint64_t seen) {
    typedef std::chrono::steady_clock Clock;
    auto open = [this, seen](uint64_t epoch) { return (epoch & 1) && epoch != seen; };
    const Clock::time_point tired = Clock::now() + std::chrono::microseconds(spin_us_);
    do {
        for (int i = 0; i < 32; i++) {
            uint64_t epoch = epoch_.load();
            if (open(epoch)) return epoch;
            if (ends_.load()) return 0;
            relax();
        }
    } while (Clock::now() < tired);
    std::unique_lock<std::mutex> lock(mutex_);
    sleepers_.fetch_add(1);
    uint64_t epoch = 0;
    wakes_.wait(lock, [&] { return ends_.load() || open(epoch = epoch_.load()); });
    sleepers_.fetch_sub(1);
    return ends_.load() ? 0 : epoch;
}

} // namespace headway

headway_pool *headway_pool_open(int32_t threads, int32_t spin_us) {
    return new (std::nothrow) headway_pool{{threads, spin_us}};
}

void headway_pool_close(headway_pool *pool) { delete pool; }
