// The cluster that is measured: clients in this process and, for the layout remote, storage
// processes, which are this very program started once more. All of it ends with the object.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bench/options.h"
#include "mooncake/result.h"
#include "mooncake/store.h"
#include "runtime/runtime.h"

namespace mooncake::bench {

// A child that serves until its standard input ends.
class StorageProcess {
 public:
  static Result<std::unique_ptr<StorageProcess>> Start(const ServeOptions& options);
  StorageProcess() = default;
  ~StorageProcess();  // Ends it: asks, waits, then kills.
  uint16_t raw_port() const { return raw_port_; }

 private:
  Status Spawn(const ServeOptions& options);
  Status AwaitReady();

  pid_t pid_ = -1;
  int input_ = -1;   // Ours to close: its standard input.
  int output_ = -1;  // Ours to read: its standard output.
  uint16_t raw_port_ = 0;
};

class Cluster {
 public:
  // `stored_bytes`: what the segments have to hold at least.
  static Result<std::unique_ptr<Cluster>> Start(const Options& options, uint64_t stored_bytes);
  Cluster() = default;
  ~Cluster();

  Store& writer(size_t thread) { return *clients_[thread % writers_]; }
  Store& reader(size_t thread) { return *clients_[(clients_.size() - 1) - thread % readers_]; }
  // Of the raw server in the first child; this machine's loopback.
  uint16_t raw_port() const { return processes_.front()->raw_port(); }
  uint64_t capacity_bytes();

 private:
  Status Open(const Options& options, uint64_t stored_bytes);

  std::string folder_;  // Temporary; empty: none.
  size_t writers_ = 1;
  size_t readers_ = 1;
  std::vector<std::unique_ptr<StorageProcess>> processes_;
  std::vector<std::unique_ptr<Store>> clients_;
};

// Bytes that the values take in segments, with what allocation adds and room to breathe.
uint64_t SegmentBytesFor(uint64_t values, uint64_t value_bytes);

// What a storage process does; returns its exit code.
int Serve(const ServeOptions& options);

}  // namespace mooncake::bench
