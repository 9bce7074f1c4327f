"""Nine lessons (`headway lesson`): predict a number, see the real engine run, read why."""
