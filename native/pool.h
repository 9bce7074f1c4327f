/* Threads that share a region's work. */
#ifndef HEADWAY_POOL_H
#define HEADWAY_POOL_H

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace headway {

/* A region is a function that claims pieces of work from a counter until none is left. The caller runs it too, and waits
 * only for threads that have claimed something: one that has not woken up in time, because another process holds its
 * processor, holds up nobody. */
class Pool {
  public:
    typedef void (*Region)(void *context, int worker);

    Pool(int threads, int spin_us);
    ~Pool();
    Pool(const Pool &) = delete;
    Pool &operator=(const Pool &) = delete;

    int threads() const { return threads_; }

    /* `worker` is 0 for the caller, below `threads` for the others. With `alone`, only the caller runs it. */
    void run(Region region, void *context, bool alone);

  private:
    void start();
    void serve(int worker);
    /* The next open region after `seen`, or 0 to end. */
    uint64_t next(uint64_t seen);

    const int threads_, spin_us_;
    std::vector<std::thread> workers_;
    bool started_ = false;
    /* Odd while a region is open. It is closed before the caller looks whether anyone is `active`, and a worker is
     * active before it looks whether its region is still open: one of the two sees the other. */
    alignas(64) std::atomic<uint64_t> epoch_{0};
    alignas(64) std::atomic<int> active_{0};
    Region region_ = nullptr;
    void *context_ = nullptr;
    std::atomic<int> sleepers_{0};
    std::atomic<bool> ends_{false};
    std::mutex mutex_;
    std::condition_variable wakes_;
};

/* Cache lines are kept apart. */
struct alignas(64) Counter {
    std::atomic<int> value{0};
};

/* How far a stage is: its number, and pieces. Cache lines are kept apart. */
struct alignas(64) Mark {
    std::atomic<uint64_t> value{0};

    static uint64_t of(uint32_t stage, uint32_t pieces) { return static_cast<uint64_t>(stage) << 32 | pieces; }
    static uint32_t stage(uint64_t mark) { return static_cast<uint32_t>(mark >> 32); }
    static uint32_t pieces(uint64_t mark) { return static_cast<uint32_t>(mark); }
};

/* Stages of a region, which its threads go through together: nobody begins one before all pieces of the one before are
 * done. Each thread has a part of a stage's pieces, one after another, so that it reads on where it was, and takes from
 * others' parts when its own is done. Whoever has claimed a piece is running; a thread that comes late finds nothing left,
 * and goes on. */
class Stages {
  public:
    explicit Stages(int threads) : threads_(threads), claimed_(new Mark[static_cast<size_t>(threads)]) {}

    /* Before a region opens. */
    void reset() {
        for (int i = 0; i < threads_; i++) claimed_[static_cast<size_t>(i)].value.store(0);
        done_.value.store(0);
    }
    /* The first piece of a thread's part of `count`. */
    int first(int worker, int count) const {
        const int more = count % threads_;
        return worker * (count / threads_) + (worker < more ? worker : more);
    }

  private:
    friend class Walk;
    const int threads_;
    std::unique_ptr<Mark[]> claimed_; /* how many of each thread's part; of an earlier stage: none */
    Mark done_;
};

/* Nothing to do while others still work. */
struct Idle {
    void operator()() const {}
};

/* A thread's way through the stages. All threads of a region share the same stages, one after another. */
class Walk {
  public:
    Walk(Stages &stages, int worker) : stages_(stages), worker_(worker) {}

    int worker() const { return worker_; }
    int first(int count) const { return stages_.first(worker_, count); }
    /* piece(i) for each claimed piece of `count`; idle() again and again until those of others are done. */
    template <typename Piece, typename While = Idle> void share(int count, Piece piece, While &&idle = While());

  private:
    template <typename Piece> uint32_t take(int part, int count, const Piece &piece);
    void add_done(uint32_t pieces);

    Stages &stages_;
    const int worker_;
    uint32_t stage_ = 0;
};

inline void relax() {
#if defined(__x86_64__) || defined(_M_X64)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

template <typename Piece, typename While> void Walk::share(int count, Piece piece, While &&idle) {
    stage_++;
    uint32_t taken = 0;
    for (int i = 0; i < stages_.threads_; i++) taken += take((worker_ + i) % stages_.threads_, count, piece);
    if (taken) add_done(taken);
    const uint64_t all = Mark::of(stage_, static_cast<uint32_t>(count));
    for (int spins = 0; count && stages_.done_.value.load() < all; spins++) {
        idle();
        relax();
        if (spins > 2000) std::this_thread::yield();
    }
}

/* How many of a part's pieces were left for this thread. */
template <typename Piece> uint32_t Walk::take(int part, int count, const Piece &piece) {
    const uint32_t first = static_cast<uint32_t>(stages_.first(part, count));
    const uint32_t size = static_cast<uint32_t>(stages_.first(part + 1, count)) - first;
    std::atomic<uint64_t> &claimed = stages_.claimed_[static_cast<size_t>(part)].value;
    uint64_t seen = claimed.load();
    for (uint32_t taken = 0;;) {
        const uint32_t next = Mark::stage(seen) < stage_ ? 0 : Mark::pieces(seen);
        /* A later stage: this one is over. */
        if (Mark::stage(seen) > stage_ || next >= size) return taken;
        if (!claimed.compare_exchange_weak(seen, Mark::of(stage_, next + 1))) continue;
        piece(static_cast<int>(first + next));
        taken++;
        seen = claimed.load();
    }
}

/* No later stage has begun while pieces of this one are not counted. */
inline void Walk::add_done(uint32_t pieces) {
    std::atomic<uint64_t> &done = stages_.done_.value;
    for (uint64_t seen = done.load();;) {
        const uint32_t before = Mark::stage(seen) < stage_ ? 0 : Mark::pieces(seen);
        if (done.compare_exchange_weak(seen, Mark::of(stage_, before + pieces))) return;
    }
}

} // namespace headway

struct headway_pool {
    headway::Pool pool;
};
#endif
