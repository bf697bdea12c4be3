// A shared library without any of a plugin's symbols.
extern "C" int just_a_library() { return 1; }
