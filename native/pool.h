/* Threads that share a region's work. */
#ifndef HEADWAY_POOL_H
#define HEADWAY_POOL_H

#include <atomic>
#include <condition_variable>
#include <cstdint>
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

/* Work that a region's threads do together before any of them goes on: each claims pieces, and waits at last for those who
 * still have some. Whoever has claimed a piece is running; a thread that comes late finds nothing left, and goes on. */
struct alignas(64) Stage {
    std::atomic<int> next{0};
    alignas(64) std::atomic<int> done{0};

    void reset() { next.store(0), done.store(0); }
    template <typename Piece> void share(int count, Piece piece);
};

inline void relax() {
#if defined(__x86_64__) || defined(_M_X64)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

template <typename Piece> void Stage::share(int count, Piece piece) {
    if (done.load() >= count) return;
    for (int i; (i = next.fetch_add(1)) < count;) {
        piece(i);
        done.fetch_add(1);
    }
    for (int spins = 0; done.load() < count; spins++) {
        relax();
        if (spins > 2000) std::this_thread::yield();
    }
}

} // namespace headway

struct headway_pool {
    headway::Pool pool;
};
#endif
