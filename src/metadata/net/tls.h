// TLS for a Stream, as a filter between plain bytes and those on the wire: it does no I/O itself,
// so that every wait stays the Stream's and no write of OpenSSL's can raise SIGPIPE.
//
// Used by one thread at a time.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "mooncake/result.h"

namespace mooncake::metadata {

// PEM files. They are read for each connection, so that renewed ones count from the next on.
struct TlsOptions {
  std::string ca_file;    // Whom to trust; empty: the system's authorities.
  std::string cert_file;  // The client's certificate with its chain, for mutual TLS.
  std::string key_file;   // Its key; empty: in cert_file.
  std::string name;       // What the server's certificate must say; empty: the host's name.
  std::string protocol;   // What is spoken inside, by its name in ALPN; empty: it is not said.
};

class Tls {
 public:
  // kInvalidArgument names the file that cannot be used. Also the way to check options early.
  static Result<std::unique_ptr<Tls>> New(const TlsOptions& options, const std::string& host);
  struct Handles;                                  // OpenSSL's.
  explicit Tls(std::unique_ptr<Handles> handles);  // See New.
  ~Tls();
  Tls(const Tls&) = delete;
  Tls& operator=(const Tls&) = delete;

  // What a step needs before it can go on; whatever it made goes out first, see TakeOutput.
  enum class Want { kNothing, kInput, kEnd };

  // One step of the handshake. kNothing: it is done. kMetadata says why the server is refused.
  Result<Want> Handshake();
  // Takes the plain bytes in; all of them, as the wire's side is memory.
  Status Encrypt(std::string_view plain);
  // Fills `plain`; `count` is how much. kEnd: the other side is done.
  Result<Want> Decrypt(std::span<char> plain, size_t& count);

  void AddInput(std::string_view wire);
  std::string TakeOutput();
  // Whether Decrypt may have more without new input.
  bool HasInput() const;

 private:
  Error Refused(int ssl_error) const;

  const std::unique_ptr<Handles> handles_;
};

}  // namespace mooncake::metadata
