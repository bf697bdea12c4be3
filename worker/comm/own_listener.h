// The listening sockets of this process, and how to wake whoever waits on one for a peer that will
// never connect. (A gloo group waits so in its constructor, and offers no way out.)
#pragma once

#include <set>
#include <string>

namespace muster {

// Socket addresses as raw bytes (sockaddr_in or sockaddr_in6) of all TCP sockets in LISTEN state.
std::set<std::string> OwnListeners();

// Connects once in the name of every member 0..size-1 (gloo's hello: the number, 8 bytes, native
// order) and closes. Errors are ignored: a listener that is gone needs no waking.
void PokeListener(const std::string& address, int size);

}  // namespace muster
