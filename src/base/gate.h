// Gate: counts the callers inside, so that closing can wait until nobody is, and a change can
// wait until everybody who came before it has left. Enter and Leave are a few atomics.
#pragma once

#include <atomic>
#include <cstdint>

namespace mooncake::base {

class Gate {
 public:
  // A caller's stay. False: the gate is closed, do not go on.
  class Pass {
   public:
    explicit Pass(Gate& gate) : gate_(gate), side_(gate.Enter()) {}
    ~Pass() { gate_.Leave(side_); }
    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;
    explicit operator bool() const { return side_ >= 0; }

   private:
    Gate& gate_;
    const int side_;
  };

  void Close() { closed_.store(true); }
  bool closed() const { return closed_.load(); }
  int64_t inside() const { return count_[0].load() + count_[1].load(); }

  // For who waits until everybody inside has left: one at a time, between a BeginTurn that
  // returned true and EndTurn. First until Left(Resting()), as who was slow to enter may count on
  // the side that the last turn left; then, of the side that Turn returns, until Left of that.
  bool BeginTurn() { return !turning_.exchange(true); }
  void EndTurn() { turning_.store(false); }
  int Resting() const { return side_.load() ^ 1; }
  // Those who enter from now on count on the other side; returns the old one.
  int Turn() { return side_.fetch_xor(1); }
  bool Left(int side) const { return count_[side].load() == 0; }

  // What a Pass does, for who cannot keep one: the side to Leave, negative when the gate is closed.
  int Enter() {
    const int side = side_.load();
    count_[side].fetch_add(1);
    if (!closed_.load()) return side;
    count_[side].fetch_sub(1);
    return -1;
  }
  void Leave(int side) {
    if (side >= 0) count_[side].fetch_sub(1);
  }

 private:
  std::atomic<bool> closed_{false};
  std::atomic<bool> turning_{false};
  std::atomic<int> side_{0};
  std::atomic<int64_t> count_[2] = {0, 0};
};

}  // namespace mooncake::base
